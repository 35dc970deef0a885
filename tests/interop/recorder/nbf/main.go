// Takes a lock as sethvargo/go-gcslock does, once, and says how that went as one JSON object on standard output.
//
// Its locks are never given back. The server is that of STORAGE_EMULATOR_HOST.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"time"

	"github.com/sethvargo/go-gcslock"
	"google.golang.org/api/option"
)

func main() {
	bucket := flag.String("bucket", "", "")
	object := flag.String("object", "", "")
	ttl := flag.Duration("ttl", 10*time.Second, "")
	flag.Parse()
	said := map[string]any{"event": "acquired"}
	lock, err := gcslock.New(context.Background(), *bucket, *object, option.WithoutAuthentication())
	if err == nil {
		err = lock.Acquire(context.Background(), *ttl)
	}
	if err != nil {
		said = map[string]any{"event": "failed", "error": err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		os.Exit(2)
	}
}
