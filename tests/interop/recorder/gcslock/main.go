// Holds a lock as gcslock does, on the word of whoever started it.
//
// Decides nothing: takes the lock, says so on standard output, one JSON object a line, and releases at the first line
// of standard input. gcslock has no way to name a server: built with -ldflags "-X ...storageLockURL=..." (record.py).
// It insists on credentials, so it is given a key made on the spot and a token endpoint of our own.
package main

import (
	"bufio"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/mco-gh/gcslock"
)

func say(event string) {
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"event": event}); err != nil {
		os.Exit(2)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func credentials(tokens string) string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)
	file, err := os.CreateTemp("", "recorder-*.json")
	check(err)
	defer file.Close()
	check(json.NewEncoder(file).Encode(map[string]string{
		"type":         "service_account",
		"client_email": "recorder@example.invalid",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"token_uri":    tokens,
	}))
	return file.Name()
}

func main() {
	bucket := flag.String("bucket", "", "")
	object := flag.String("object", "", "")
	wait := flag.Duration("wait", 10*time.Second, "")
	flag.Parse()
	tokens := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		answer.Header().Set("Content-Type", "application/json")
		fmt.Fprint(answer, `{"access_token": "none", "token_type": "Bearer", "expires_in": 3600}`)
	}))
	defer tokens.Close()
	path := credentials(tokens.URL)
	defer os.Remove(path)
	check(os.Setenv("GOOGLE_APPLICATION_CREDENTIALS", path))

	lock, err := gcslock.New(nil, "project", *bucket, *object)
	check(err)
	if err := gcslock.Lock(lock, *wait); err != nil {
		say("failed")
		return
	}
	say("acquired")
	bufio.NewScanner(os.Stdin).Scan()
	if err := gcslock.Unlock(lock, *wait); err != nil {
		say("not released")
		return
	}
	say("released")
}
