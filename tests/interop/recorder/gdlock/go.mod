module lockstead.example/recorder/gdlock

go 1.21

require (
	github.com/FooBarWidget/distributed-lock-google-cloud-storage-go v0.0.0
	google.golang.org/api v0.54.0
)

require (
	cloud.google.com/go v0.93.3 // indirect
	cloud.google.com/go/storage v1.16.1 // indirect
	github.com/golang/groupcache v0.0.0-20200121045136-8c9f03a8e57e // indirect
	github.com/golang/protobuf v1.5.2 // indirect
	github.com/google/go-cmp v0.5.6 // indirect
	github.com/googleapis/gax-go/v2 v2.0.5 // indirect
	github.com/thanhpk/randstr v1.0.4 // indirect
	go.opencensus.io v0.23.0 // indirect
	golang.org/x/net v0.0.0-20210503060351-7fd8e65b6420 // indirect
	golang.org/x/oauth2 v0.0.0-20210805134026-6f1e6394065a // indirect
	golang.org/x/sys v0.0.0-20210806184541-e5e7981a1069 // indirect
	golang.org/x/text v0.3.6 // indirect
	google.golang.org/genproto v0.0.0-20210825212027-de86158e7fda // indirect
	google.golang.org/grpc v1.40.0 // indirect
	google.golang.org/protobuf v1.27.1 // indirect
)

replace github.com/FooBarWidget/distributed-lock-google-cloud-storage-go => ../checkouts/distributed-lock-google-cloud-storage-go
