// Holds a lock as the Go port of distributed-lock-google-cloud-storage does, on the word of whoever started it.
//
// Decides nothing: takes the lock, says so on standard output, one JSON object a line, and obeys the lines of standard
// input: health, release, abandon. The server is that of STORAGE_EMULATOR_HOST.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"os"
	"time"

	"github.com/FooBarWidget/distributed-lock-google-cloud-storage-go/gdlock"
	"google.golang.org/api/option"
)

func say(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		os.Exit(2)
	}
}

func told(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}

func main() {
	config := gdlock.DefaultConfig
	flag.StringVar(&config.BucketName, "bucket", "", "")
	flag.StringVar(&config.Path, "path", "", "")
	flag.StringVar(&config.InstanceIdentityPrefix, "identity", "", "")
	flag.DurationVar(&config.TTL, "ttl", config.TTL, "")
	flag.DurationVar(&config.RefreshInterval, "refresh", config.RefreshInterval, "")
	wait := flag.Duration("wait", 10*time.Second, "")
	flag.Parse()
	config.BackoffMin, config.BackoffMax = 200*time.Millisecond, 500*time.Millisecond
	config.ClientOptions = []option.ClientOption{option.WithoutAuthentication()}

	lock, err := gdlock.New(context.Background(), config)
	if err != nil {
		say("failed", map[string]any{"error": err.Error()})
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *wait)
	defer cancel()
	unlock, err := lock.Lock(gdlock.LockOptions{Context: ctx, GoroutineID: 7})
	if err != nil {
		say("failed", map[string]any{"error": err.Error()})
		os.Exit(1)
	}
	say("acquired", nil)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case "health":
			healthy, err := lock.Healthy()
			say("health", map[string]any{"healthy": healthy, "error": told(err), "refresh_error": told(lock.LastRefreshError())})
		case "release":
			deleted, err := unlock(context.Background())
			say("released", map[string]any{"deleted": deleted, "error": told(err)})
		case "abandon":
			say("abandoned", map[string]any{"error": told(lock.Abandon(context.Background()))})
		}
	}
}
