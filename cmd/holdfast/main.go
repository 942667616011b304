// Command holdfast is the daemon and its command line.
package main

import (
	"os"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
