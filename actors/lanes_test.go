package actors_test

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"kvferry/actors"
)

// Each mailbox that is scheduled runs once, by many goroutines at a time.
func TestLanesRunAllThatIsScheduledOnce(t *testing.T) {
	lanes := actors.NewLanes(actors.RealClock{})
	defer lanes.Close()
	const senders, each = 8, 2000
	var runs [senders * each]atomic.Int32
	var all sync.WaitGroup
	all.Add(len(runs))
	for s := range senders {
		go func() {
			for i := range each {
				n := s*each + i
				lanes.Schedule(func() {
					if runs[n].Add(1) == 1 {
						all.Done()
					}
				})
			}
		}()
	}
	all.Wait()
	for i := range runs {
		if n := runs[i].Load(); n != 1 {
			t.Fatalf("mailbox %d ran %d times, want once", i, n)
		}
	}
}

// What an actor sends runs after it returns, in the order in which it was sent.
func TestLanesKeepTheOrderOfWhatOneSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := actors.NewLanes(actors.RealClock{})
		defer lanes.Close()
		var trail trail
		lanes.Schedule(func() {
			for _, name := range []string{"b", "c", "d"} {
				lanes.Schedule(func() { trail.add(name) })
			}
			trail.add("a")
		})
		synctest.Wait()
		trail.want(t, "a", "b", "c", "d")
	})
}

// Actors that block hold up nobody else for long, however many they are, and even if
// nothing is sent any more that could wake another lane.
func TestLanesGoOnWhereActorsBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := actors.NewLanes(actors.RealClock{})
		defer lanes.Close()
		blocked := make(chan bool)
		count := 4 * runtime.GOMAXPROCS(0)
		for range count {
			lanes.Schedule(func() { <-blocked })
		}
		ran := make(chan bool)
		lanes.Schedule(func() { close(ran) })
		began := time.Now()
		<-ran
		if took, most := time.Since(began), time.Duration(2*count+2)*time.Millisecond; took > most {
			t.Errorf("the mailbox behind %d that block ran after %v, want within %v", count, took, most)
		}
		close(blocked)
	})
}

// An actor that blocks holds up the others once, not each message to them.
func TestLanesThatAreStuckDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := actors.NewLanes(actors.RealClock{})
		defer lanes.Close()
		once := func() time.Duration {
			began, ran := time.Now(), make(chan bool)
			lanes.Schedule(func() { close(ran) })
			<-ran
			return time.Since(began)
		}
		blocked := make(chan bool)
		for n := range 3 { // as many as there may be
			lanes.Schedule(func() { <-blocked })
			synctest.Wait()
			if took := once(); took > 2*time.Millisecond {
				t.Errorf("with %d that block, a mailbox ran after %v, want within 2ms", n+1, took)
			}
			for range 5 {
				if took := once(); took > 0 {
					t.Errorf("with %d that block, another ran after %v, want at once", n+1, took)
				}
			}
		}
		close(blocked)
		synctest.Wait()
		lanes.Schedule(func() { time.Sleep(time.Microsecond) }) // those count again
		if took := once(); took != time.Microsecond {
			t.Errorf("when nothing blocks any more, a mailbox ran after %v, want behind the one before", took)
		}
	})
}

// A func that ends its goroutine, as t.FailNow does, ends nothing else.
func TestLanesOutliveTheEndOfAGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := actors.NewLanes(actors.RealClock{})
		defer lanes.Close()
		var ran atomic.Int32
		began := time.Now()
		lanes.Schedule(func() {
			lanes.Schedule(func() { ran.Add(1) })
			runtime.Goexit()
		})
		synctest.Wait()
		lanes.Schedule(func() { ran.Add(1) })
		synctest.Wait()
		if ran.Load() != 2 || time.Since(began) != 0 {
			t.Errorf("%d of 2 mailboxes ran, after %v, want at once", ran.Load(), time.Since(began))
		}
	})
}

// What was taken from the queue is not kept, even if it is never empty.
func TestLanesUnderLoadDoNotGrow(t *testing.T) {
	lanes := actors.NewLanes(actors.RealClock{})
	defer lanes.Close()
	const chains, each = 8, 50_000
	var all sync.WaitGroup
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range chains {
		all.Add(1)
		left := each
		var run func()
		run = func() {
			if left--; left == 0 {
				all.Done()
				return
			}
			lanes.Schedule(run)
		}
		lanes.Schedule(run)
	}
	all.Wait()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 { // guards allocate a little
		t.Errorf("%d runs of %d mailboxes allocated %d bytes", chains*each, chains, got)
	}
}

// After Close nothing is left of the lanes, and what is scheduled still runs: the
// bubble ends only if no goroutine is left.
func TestLanesThatAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := actors.NewLanes(actors.RealClock{})
		var ran atomic.Int32
		run := func() { ran.Add(1) }
		running, blocked := make(chan bool), make(chan bool)
		lanes.Schedule(func() { running <- true; <-blocked })
		<-running
		lanes.Schedule(run) // waits
		lanes.Close()
		lanes.Schedule(run)
		synctest.Wait()
		if ran.Load() != 2 {
			t.Errorf("%d of 2 mailboxes ran: one that waited, one after Close", ran.Load())
		}
		close(blocked)
	})
}

// A lane that has nothing to do is used again: it is why there are lanes.
func TestLanesAreUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lanes := actors.NewLanes(actors.RealClock{})
		defer lanes.Close()
		seen := map[string]bool{}
		for range 10 {
			lanes.Schedule(func() { seen[goroutine()] = true })
			synctest.Wait()
		}
		if len(seen) != 1 {
			t.Errorf("10 mailboxes one after another ran in %d goroutines, want 1", len(seen))
		}
	})
}

// goroutine names the goroutine that calls it.
func goroutine() string {
	stack := make([]byte, 64)
	return strings.Fields(string(stack[:runtime.Stack(stack, false)]))[1]
}

// A room's actor runs where its engine sends to it, and a panic in it ends it and
// nothing of the engine, which goes on with what it was doing.
func TestRoomActorsRunInline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, logs := newEnv()
		env.Lanes = actors.NewLanes(env.Clock)
		defer env.Lanes.Close()
		var engine, room trail
		top := env.System.Root.Spawn(env.TopProps(func() actor.Actor {
			var kid *actor.PID
			return actor.ReceiveFunc(func(c actor.Context) {
				switch m := c.Message().(type) {
				case *actor.Started:
					kid, _ = c.SpawnNamed(env.RoomProps(func() actor.Actor {
						return actor.ReceiveFunc(func(c actor.Context) {
							switch m := c.Message().(type) {
							case string:
								room.add(m)
								c.Send(c.Parent(), "answer to "+m)
								if m == "die" {
									panic("planted")
								}
							}
						})
					}), "room")
				case int:
					for _, say := range []string{"one", "die", "late"} {
						c.Send(kid, say)
						engine.add("sent " + say + " " + strings.Join(room.all(), " "))
					}
				case string:
					engine.add(m)
				case *actor.Terminated:
					engine.add("terminated")
				}
			})
		}))
		env.System.Root.Send(top, 1)
		synctest.Wait()
		room.want(t, "one", "die")
		// Terminated overtakes what the room had sent: it is a system message.
		engine.want(t, "sent one one", "sent die one die", "sent late one die", "terminated", "answer to one", "answer to die")
		if n := logs.FilterMessage("actor panicked").Len(); n != 1 {
			t.Errorf("got %d log entries of a panic, want 1", n)
		}
		env.System.Root.Stop(top)
		settle()
	})
}

// Deadlines mostly move on: a timer that is armed for an earlier time is left alone,
// and its early tick arms it for the time that is meant by then.
func TestTimerMovesOnWithoutBeingArmedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, _ := newEnv()
		clock := &countingClock{Clock: env.Clock}
		env.Clock = clock
		began := time.Now()
		var ticks []time.Duration
		const after = 1050 * time.Millisecond
		due := began.Add(after)
		top := env.System.Root.Spawn(env.TopProps(func() actor.Actor {
			var timer *actors.Timer
			return actor.ReceiveFunc(func(c actor.Context) {
				switch m := c.Message().(type) {
				case *actor.Started:
					timer = actors.NewTimer(env, c)
				case string: // something happens, the deadline moves on
					due = time.Now().Add(after)
				case *actors.Tick:
					if !m.Live() {
						return
					}
					ticks = append(ticks, time.Since(began))
					if !time.Now().Before(due) {
						return
					}
				default:
					return
				}
				timer.At(due)
			})
		}))
		for range 15 {
			env.System.Root.Send(top, "again")
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []time.Duration{after, time.Second + after, 1400*time.Millisecond + after}
		if !slices.Equal(ticks, want) {
			t.Errorf("got ticks after %v, want %v", ticks, want)
		}
		if n := clock.armed.Load(); n != 3 {
			t.Errorf("the clock was asked %d times, want once for each tick", n)
		}
		env.System.Root.Stop(top)
		settle()
	})
}

type countingClock struct {
	actors.Clock
	armed atomic.Int32
}

func (c *countingClock) AfterFunc(d time.Duration, f func()) func() {
	c.armed.Add(1)
	return c.Clock.AfterFunc(d, f)
}

// BenchmarkDispatch is a message there and back between two actors that are otherwise
// idle, by who runs them.
func BenchmarkDispatch(b *testing.B) {
	lanes := actors.NewLanes(actors.RealClock{})
	defer lanes.Close()
	for _, by := range []struct {
		name string
		with *actors.Lanes
	}{{"goroutines", nil}, {"lanes", lanes}} {
		b.Run(by.name, func(b *testing.B) {
			env, _ := newEnv()
			env.Lanes = by.with
			done := make(chan bool)
			props := func(left int) *actor.Props {
				return env.TopProps(func() actor.Actor {
					return actor.ReceiveFunc(func(c actor.Context) {
						if other, ok := c.Message().(*actor.PID); ok {
							if left--; left < 0 {
								done <- true
								return
							}
							c.Send(other, c.Self())
						}
					})
				})
			}
			x, y := env.System.Root.Spawn(props(b.N)), env.System.Root.Spawn(props(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			env.System.Root.Send(x, y)
			<-done
			env.System.Root.Stop(x)
			env.System.Root.Stop(y)
		})
	}
}
