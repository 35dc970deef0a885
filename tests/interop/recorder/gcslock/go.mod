module lockstead.example/recorder/gcslock

go 1.26.0

require github.com/mco-gh/gcslock v0.0.0

require (
	cloud.google.com/go/compute/metadata v0.3.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
)

replace github.com/mco-gh/gcslock => ../checkouts/gcslock
