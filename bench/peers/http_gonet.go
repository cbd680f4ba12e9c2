// http_gonet.go: Go's net/http. It parses all of HTTP and answers each pipelined request with a
// write of its own.
//
//	http_gonet port threads
package main

import (
	"log"
	"net/http"
	"os"
	"runtime"
	"strconv"
)

func main() {
	threads, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	runtime.GOMAXPROCS(threads)
	body := []byte("Hello, World!")
	http.HandleFunc("/plaintext", func(writer http.ResponseWriter, request *http.Request) {
		header := writer.Header()
		header.Set("Server", "peer")
		header.Set("Content-Type", "text/plain")
		writer.Write(body)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
