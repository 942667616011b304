package holdfast_test

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// dialers are the words by which a program makes a connection of its own: of a
// package, by its import path.
var dialers = map[string][]string{
	"net":        {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer"},
	"net/http":   {"Client", "Transport", "DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm", "ProxyFromEnvironment", "ProxyURL"},
	"crypto/tls": {"Dial", "DialWithDialer", "Dialer"},
	"net/smtp":   {"Dial", "SendMail", "NewClient"},
	"net/rpc":    {"Dial", "DialHTTP"},
	"os/exec":    {"Command", "CommandContext"},
	"syscall":    {"Connect", "Exec", "ForkExec", "StartProcess"},
	"os":         {"StartProcess"},

	"github.com/nats-io/nats.go":        {"Connect"},
	"github.com/jackc/pgx/v5":           {"Connect", "ConnectConfig"},
	"github.com/jackc/pgx/v5/pgxpool":   {"New", "NewWithConfig"},
	"golang.org/x/net/proxy":            {"SOCKS5", "FromEnvironment"},
	"golang.org/x/net/http/httpproxy":   {"FromEnvironment"},
	"github.com/gorilla/websocket":      {"DefaultDialer", "Dialer"},
	"github.com/coder/websocket":        {"Dial"},
	"google.golang.org/grpc":            {"Dial", "NewClient"},
	"github.com/jackc/pgx/v5/stdlib":    {"OpenDB", "Open"},
	"golang.org/x/crypto/acme/autocert": {"Manager"},
}

// ways are the places of product code that make connections or start programs,
// each with why it does not go through the guard; a reason that begins with
// "guarded" says that it does. A new one belongs in here, or better not at all.
var ways = map[string]string{
	"internal/netguard":              "guarded: it is the guard",
	"internal/provider/wire":         "guarded: the transport's dialer and its proxy are the guard's and the configuration's",
	"internal/webhook":               "guarded: it only holds the guard's client",
	"internal/httptool":              "guarded: it only holds the guard's client",
	"internal/otlp":                  "guarded: it only holds the client that the guard made",
	"internal/daemon":                "guarded: a client around the guarded transport of wire, and around a test's",
	"internal/provider/openai":       "guarded: it only holds the client that it is given",
	"internal/provider/anthropic":    "guarded: it only holds the client that it is given",
	"internal/provider/gemini":       "guarded: it only holds the client that it is given",
	"internal/provider/openaicompat": "guarded: it only holds the client that it is given",
	"internal/doctor":                "guarded to vendors; else the daemon's own socket, by its path",
	"internal/postgres":              "the database that the operator names, by its own protocol; nothing that others say goes into the address",
	"internal/bus":                   "the bus that the operator names, by its own protocol",
	"internal/storetest":             "a database of tests",
	"internal/listener":              "the daemon's own socket, by its path, before it listens there",
	"internal/mail":                  "a mail server that the operator names in targets.mail",
	"internal/natsout":               "a NATS server that the operator names in targets.nats",
	"internal/plugin":                "a program that the operator names in targets.plugins",
	"internal/masterkey":             "a program that the operator names, which is given no address",
	"client":                         "the daemon that the user of the command line names",
	"bench":                          "what is measured, on this machine",
	"internal/demo":                  "the demo's own daemon and receiver, on this machine",
	"internal/httpapi/apitest":       "the door of a test, on this machine",
	"internal/provider/chatstub":     "a stand-in for tests, over a pipe",
	"internal/provider/pieces":       "a stand-in for tests, over a reader",
}

// C60: there is no way out of the house beside the ones in the table.
func TestWaysOut(t *testing.T) {
	used := map[string]bool{}
	for dir, files := range packages(t) {
		for _, f := range files {
			if strings.HasSuffix(f.name, "_test.go") {
				continue
			}
			for _, what := range connects(f.ast) {
				if ways[dir] == "" {
					t.Errorf("%s uses %s: go through internal/netguard, or say in the table why not", f.name, what)
				}
				used[dir] = true
			}
		}
	}
	for dir := range ways {
		if !used[dir] {
			t.Errorf("%s is in the table and makes no connection", dir)
		}
	}
}

// connects lists the words of dialers that a file uses.
func connects(f *ast.File) []string {
	names := map[string]string{} // of imports in this file, to their paths
	for _, spec := range f.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		name := path[strings.LastIndexByte(path, '/')+1:]
		switch {
		case spec.Name != nil:
			name = spec.Name.Name
		case path == "github.com/nats-io/nats.go":
			name = "nats"
		case path == "github.com/jackc/pgx/v5":
			name = "pgx"
		}
		if dialers[path] != nil {
			names[name] = path
		}
	}
	var out []string
	if path, dot := names["."]; dot {
		out = append(out, "everything of "+path)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(dialers[names[x.Name]], sel.Sel.Name) {
				out = append(out, fmt.Sprintf("%s.%s", x.Name, sel.Sel.Name))
			}
		}
		return true
	})
	return out
}
