// pool_go.go: a goroutine for each item; what micro/pool.c measures, in Go.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync/atomic"
	"time"
)

const itemsMax = 1 << 16

var (
	left    int64
	reposts uint64
	started int64
	done    = make(chan bool, 1)
)

func count() {
	if atomic.AddInt64(&left, -1) == 0 {
		done <- true
	}
}

func again() {
	reposts--
	if reposts > 0 {
		go again()
	} else {
		done <- true
	}
}

var epoch = time.Now()

func note() {
	atomic.StoreInt64(&started, int64(time.Since(epoch)))
}

func say(metric string, round, ops uint64, ns float64) {
	fmt.Printf("{\"metric\": \"%s\", \"way\": \"go\", \"round\": %d, \"ops\": %d, \"ns\": %.1f}\n", metric, round, ops, ns)
}

func post(ops uint64) float64 {
	var spent time.Duration
	for made := uint64(0); made < ops; {
		some := ops - made
		if some > itemsMax {
			some = itemsMax
		}
		atomic.StoreInt64(&left, int64(some))
		at := time.Now()
		for i := uint64(0); i < some; i++ {
			go count()
		}
		<-done
		spent += time.Since(at)
		made += some
	}
	return float64(spent) / float64(ops)
}

func wake(round, samples uint64) {
	times := make([]int64, samples)
	for i := range times {
		time.Sleep(500 * time.Microsecond)
		at := int64(time.Since(epoch))
		go note()
		for atomic.LoadInt64(&started) == 0 {
		}
		times[i] = atomic.SwapInt64(&started, 0) - at
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	say("wake_p50", round, samples, float64(times[samples/2]))
	say("wake_p99", round, samples, float64(times[samples*99/100]))
}

func main() {
	number := []uint64{2, 1, 100000, 100}
	for i := range number {
		if i+1 < len(os.Args) {
			number[i], _ = strconv.ParseUint(os.Args[i+1], 10, 64)
		}
	}
	workers, rounds, ops, samples := number[0], number[1], number[2], number[3]
	runtime.GOMAXPROCS(int(workers))
	post(100000)
	for round := uint64(1); round <= rounds; round++ {
		say("post", round, ops, post(ops))
		reposts = ops
		at := time.Now()
		go again()
		<-done
		say("self_repost", round, ops, float64(time.Since(at))/float64(ops))
		wake(round, samples)
		at = time.Now()
		for i := uint64(0); i < samples*10; i++ {
			go func() { done <- true }()
			<-done
		}
		say("ping_pong", round, samples*10, float64(time.Since(at))/float64(samples*10))
	}
}
