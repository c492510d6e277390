package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Records are what benchmarks/operators/common.py records: the first call for each object, and the
// number of calls. They are written to the file at the beginning, by SIGUSR1, and at the end.
type Records struct {
	mutex sync.Mutex
	Calls map[string]float64 `json:"calls"`
	Count int                `json:"count"`
	path  string
}

func NewRecords() *Records {
	records := &Records{Calls: map[string]float64{}, path: os.Getenv("BENCH_CALLS")}
	dumps := make(chan os.Signal, 1)
	signal.Notify(dumps, syscall.SIGUSR1)
	go func() {
		for range dumps {
			records.Dump()
		}
	}()
	records.Dump()
	return records
}

func (r *Records) Add(name string) {
	now := float64(time.Now().UnixNano()) / 1e9
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.Count++
	if _, known := r.Calls[name]; !known {
		r.Calls[name] = now
	}
}

func (r *Records) Dump() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	data, err := json.Marshal(r)
	check(err)
	check(os.WriteFile(r.path+".new", data, 0o644))
	check(os.Rename(r.path+".new", r.path))
}
