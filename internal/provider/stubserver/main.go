// Command stubserver serves the strict stand-ins of the vendors on loopback,
// so that unmodified public clients can be run against them. What a client
// asks decides what it gets; see scripts/public-clients.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// stub is a vendor's stand-in: it answers, and tells which rules were broken.
type stub interface {
	http.Handler
	Violations() []string
}

// vendors makes the stand-ins by name.
func vendors() map[string]func() stub {
	return map[string]func() stub{
		"chat":      chat,
		"gemini":    gemini,
		"anthropic": messages,
		"responses": responses,
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "stubserver:", err)
		os.Exit(1)
	}
}

func run() error {
	vendor := flag.String("vendor", "chat", "which vendor: "+strings.Join(slices.Sorted(maps.Keys(vendors())), ", "))
	listen := flag.String("listen", "127.0.0.1:0", "the address, on loopback")
	flag.Parse()
	make, ok := vendors()[*vendor]
	if !ok {
		return fmt.Errorf("no vendor is named %q", *vendor)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return errors.Join(fmt.Errorf("%s is not loopback", l.Addr()), l.Close())
	}
	s := make()
	// A client asks here whether it broke a rule.
	mux := http.NewServeMux()
	mux.Handle("/", s)
	mux.HandleFunc("GET /violations", func(w http.ResponseWriter, _ *http.Request) {
		for _, v := range s.Violations() {
			fmt.Fprintln(w, v)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve tells
	defer done()
	fmt.Printf("http://%s\n", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
