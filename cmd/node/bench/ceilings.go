package bench

import "context"

// LimitsConfig is a measurement of the machine's own ceilings.
type LimitsConfig struct {
	Config
	Blocks []uint64
}

// Limits is the ceilings of this machine with rows of one size, in GB/s.
type Limits struct {
	Block       uint64 `json:"block"`
	Batch       int    `json:"batch"`
	Connections int    `json:"connections"` // of the raw loop

	// One thread that copies rows: in order by the best kernel, then in no order by
	// each, and the best of these.
	Contiguous  float64 `json:"contiguous_gb_per_s"`
	Copy        float64 `json:"copy_gb_per_s"`
	Prefetch    float64 `json:"copy_prefetch_gb_per_s"`
	Stream      float64 `json:"stream_prefetch_gb_per_s"`
	CopyLimit   float64 `json:"copy_limit_gb_per_s"`
	CopyLimitBy string  `json:"copy_limit_by"`

	// The raw loop, with rows in no order on both sides, on the sender's alone, and on
	// the receiver's alone; and the seconds of processors of both for the first.
	TCPLimit    float64 `json:"tcp_limit_gb_per_s"`
	TCPGathered float64 `json:"tcp_gathered_gb_per_s"`
	TCPSpread   float64 `json:"tcp_spread_gb_per_s"`
	TCPCPUPerGB float64 `json:"tcp_cpu_s_per_gb"`

	OthersCores float64 `json:"others_cores"` // that others used meanwhile
}

// Check is what is wrong with a measurement that is asked for: a *FieldError, or nil.
func (c *LimitsConfig) Check() error {
	for _, block := range c.Blocks {
		s := c.spec(Scattered, block)
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *LimitsConfig) spec(r Rows, block uint64) Spec {
	return Spec{Rows: r, Block: block, Batch: batchOf(block, 0), Pool: c.Pool}
}

// MeasureLimits measures the ceilings for each size of rows.
func MeasureLimits(ctx context.Context, c LimitsConfig) (out []Limits, err error) {
	defer func() { err = because(ctx, err) }()
	s, err := openSender(ctx, c.Config, "")
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := s.close(); err == nil {
			err = e
		}
	}()
	for _, block := range c.Blocks {
		l, err := s.ceilings(ctx, &c, block)
		if err != nil {
			return nil, err
		}
		out = append(out, *l)
	}
	return out, nil
}

func (s *sender) ceilings(ctx context.Context, c *LimitsConfig, block uint64) (*Limits, error) {
	var all []*subject
	by := map[Rows][]*subject{} // how rows lie: the kernels, then the raw loop
	for _, rows := range []Rows{Contiguous, Scattered, Gathered, Spread} {
		l, err := newLayout(c.spec(rows, block))
		if err != nil {
			return nil, err
		}
		if rows == Contiguous || rows == Scattered {
			if by[rows], err = s.copies(l); err != nil {
				return nil, err
			}
		}
		if rows != Contiguous {
			p, err := s.loop(ctx, l)
			if err != nil {
				return nil, err
			}
			by[rows] = append(by[rows], p)
		}
		all = append(all, by[rows]...)
	}
	cores, err := s.takeTurns(ctx, all)
	if err != nil {
		return nil, err
	}
	copies, loop := by[Scattered][:len(kernels)], by[Scattered][len(kernels)]
	limit := best(copies)
	return &Limits{
		Block: block, Batch: batchOf(block, 0), Connections: c.Connections,
		Contiguous: best(by[Contiguous]).gbPerS(),
		Copy:       copies[0].gbPerS(), Prefetch: copies[1].gbPerS(), Stream: copies[2].gbPerS(),
		CopyLimit: limit.gbPerS(), CopyLimitBy: limit.name,
		TCPLimit: loop.gbPerS(), TCPGathered: by[Gathered][0].gbPerS(), TCPSpread: by[Spread][0].gbPerS(),
		TCPCPUPerGB: loop.median(Rate.cpuPerGB), OthersCores: cores,
	}, nil
}
