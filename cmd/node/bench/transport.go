package bench

import "context"

// TransportConfig is a measurement of one provider.
type TransportConfig struct {
	Config
	Provider string
	Blocks   []uint64 // bytes of a row, each measured by itself
	Batch    int      // rows of a write; 0: BatchBytes of them
	Rows     Rows
}

// Transport is what a provider reaches with rows of one size.
type Transport struct {
	Provider    string `json:"provider"`
	Processes   int    `json:"processes"`
	Rows        Rows   `json:"rows"`
	Block       uint64 `json:"block"`
	Batch       int    `json:"batch"`
	Connections int    `json:"connections,omitempty"`

	// GBPerS and LimitGBPerS are medians of the rounds, Fraction is their ratio. Limit
	// is the loop that the limit is of.
	GBPerS      float64 `json:"gb_per_s"`
	LimitGBPerS float64 `json:"limit_gb_per_s"`
	Fraction    float64 `json:"fraction"`
	Limit       string  `json:"limit"`

	// GBPerS64K is the provider with scattered rows of 64 KiB in the same rounds, where
	// rows are strided, and FractionOf64K what it reaches of that.
	GBPerS64K     float64 `json:"gb_per_s_64k,omitempty"`
	FractionOf64K float64 `json:"fraction_of_64k,omitempty"`

	// Seconds of processors for each GB, of all processes that take part: a busy machine
	// changes these least.
	CPUPerGB      float64 `json:"cpu_s_per_gb"`
	LimitCPUPerGB float64 `json:"limit_cpu_s_per_gb"`

	OthersCores float64 `json:"others_cores"` // that others used meanwhile
	Rounds      []Round `json:"rounds"`
}

// Round is one round of a measurement.
type Round struct {
	GBPerS      float64 `json:"gb_per_s"`
	LimitGBPerS float64 `json:"limit_gb_per_s"`
	GBPerS64K   float64 `json:"gb_per_s_64k,omitempty"`
}

// wideBlock is what narrow rows are compared with: a page of many models.
const wideBlock = 64 << 10

// Check is what is wrong with a measurement that is asked for, before anything is
// made: a *FieldError, or nil.
func (c *TransportConfig) Check() error {
	specs := []Spec{}
	for _, block := range c.Blocks {
		specs = append(specs, c.spec(block))
	}
	if c.Rows == Strided {
		specs = append(specs, c.wide())
	}
	for _, s := range specs {
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *TransportConfig) spec(block uint64) Spec {
	return Spec{Rows: c.Rows, Block: block, Batch: batchOf(block, c.Batch), Pool: c.Pool}
}

func (c *TransportConfig) wide() Spec {
	return Spec{Rows: Scattered, Block: wideBlock, Batch: batchOf(wideBlock, 0), Pool: c.Pool}
}

// MeasureTransport measures a provider and its ceiling in turn. For tcp that is the
// raw loop; for the others, the best way to copy the same rows with one thread.
func MeasureTransport(ctx context.Context, c TransportConfig) (out []Transport, err error) {
	defer func() { err = because(ctx, err) }()
	s, err := openSender(ctx, c.Config, c.Provider)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := s.close(); err == nil {
			err = e
		}
	}()
	for _, block := range c.Blocks {
		t, err := s.transport(ctx, &c, block)
		if err != nil {
			return nil, err
		}
		out = append(out, *t)
	}
	return out, nil
}

func (s *sender) transport(ctx context.Context, c *TransportConfig, block uint64) (*Transport, error) {
	spec := c.spec(block)
	l, err := newLayout(spec)
	if err != nil {
		return nil, err
	}
	provider := &subject{name: c.Provider, run: s.writer(l).run, pass: l.writes}
	limits, err := s.limits(ctx, c.Provider, l)
	if err != nil {
		return nil, err
	}
	all := append(limits, provider)
	var wide *subject
	if c.Rows == Strided {
		w, err := newLayout(c.wide())
		if err != nil {
			return nil, err
		}
		wide = &subject{name: c.Provider, run: s.writer(w).run, pass: w.writes}
		all = append(all, wide)
	}
	cores, err := s.takeTurns(ctx, all)
	if err != nil {
		return nil, err
	}
	t := &Transport{Provider: c.Provider, Processes: 2, Rows: c.Rows, Block: block, Batch: spec.Batch, OthersCores: cores}
	if s.near != nil {
		t.Processes = 1
	}
	if c.Provider == "tcp" {
		t.Connections = c.Connections
	}
	t.sum(provider, best(limits), wide)
	return t, nil
}

// limits is what the provider is compared with.
func (s *sender) limits(ctx context.Context, provider string, l *layout) ([]*subject, error) {
	if provider != "tcp" {
		return s.copies(l)
	}
	p, err := s.loop(ctx, l)
	return []*subject{p}, err
}

// sum takes in what was measured.
func (t *Transport) sum(provider, limit, wide *subject) {
	t.GBPerS, t.LimitGBPerS, t.Limit = provider.gbPerS(), limit.gbPerS(), limit.name
	t.Fraction = t.GBPerS / t.LimitGBPerS
	t.CPUPerGB, t.LimitCPUPerGB = provider.median(Rate.cpuPerGB), limit.median(Rate.cpuPerGB)
	for i := range provider.rates {
		t.Rounds = append(t.Rounds, Round{GBPerS: provider.rates[i].GBPerS(), LimitGBPerS: limit.rates[i].GBPerS()})
		if wide != nil {
			t.Rounds[i].GBPerS64K = wide.rates[i].GBPerS()
		}
	}
	if wide != nil {
		t.GBPerS64K = wide.gbPerS()
		t.FractionOf64K = t.GBPerS / t.GBPerS64K
	}
}
