#!/bin/sh
# Regenerates the *.pb.go files. Needs protoc and protoc-gen-go v1.36.12
# (go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12).
set -eu
cd "$(dirname "$0")/.."
PATH="$(go env GOPATH)/bin:$PATH" protoc -I proto --go_out=. --go_opt=module=kvferry \
	proto/kvferry/v1/kvferry.proto proto/kvferry/verbs/v1/control.proto
