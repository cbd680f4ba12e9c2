// http_fasthttp.go: Go with fasthttp. It parses all of HTTP and gathers the answers of one read.
//
//	http_fasthttp port threads
package main

import (
	"log"
	"os"
	"runtime"
	"strconv"

	"github.com/valyala/fasthttp"
)

func main() {
	threads, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	runtime.GOMAXPROCS(threads)
	server := &fasthttp.Server{
		Name: "peer",
		Handler: func(context *fasthttp.RequestCtx) {
			if string(context.Path()) != "/plaintext" {
				context.Error("Not Found", fasthttp.StatusNotFound)
				return
			}
			context.SetContentType("text/plain")
			context.SetBodyString("Hello, World!")
		},
	}
	log.Fatal(server.ListenAndServe("127.0.0.1:" + os.Args[1]))
}
