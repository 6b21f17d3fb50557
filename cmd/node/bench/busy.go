package bench

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// others is how many cores other processes, and other machines on the same host, took
// while something was measured: what the figures are worth.
type others struct {
	usage       usage
	since       time.Time
	busy, ours  time.Duration
	unavailable bool
}

func (s *sender) watchOthers() (*others, error) {
	o := &others{usage: s.usage, since: time.Now()}
	var ok bool
	if o.busy, ok = busyTime(); !ok {
		o.unavailable = true
	}
	var err error
	o.ours, err = s.usage()
	return o, err
}

// cores is the number since watchOthers; 0 where it is not known.
func (o *others) cores() (float64, error) {
	ours, err := o.usage()
	busy, ok := busyTime()
	if err != nil || !ok || o.unavailable {
		return 0, err
	}
	return max(0, float64(busy-o.busy-ours+o.ours)/float64(time.Since(o.since))), nil
}

// tick is the unit of /proc/stat (USER_HZ), which Linux never changes.
const tick = 10 * time.Millisecond

// busyTime is what all cores of the machine have worked, or were kept from working.
func busyTime() (time.Duration, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	// cpu user nice system idle iowait irq softirq steal guest guest_nice, of which
	// the guests are in user and nice already.
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, false
	}
	sum := time.Duration(0)
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, false
		}
		if i != 3 && i != 4 { // idle, waiting for a disk
			sum += time.Duration(n) * tick
		}
	}
	return sum, true
}
