package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// childArg has the program be a daemon on a directory: what is measured is a
// process of its own.
const childArg = "child-daemon"

// isChild says whether the program was such a daemon. Then it is over.
func isChild() bool {
	if len(os.Args) != 5 || os.Args[1] != childArg {
		return false
	}
	if err := child(os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "bench child:", err)
		os.Exit(1)
	}
	return true
}

// child serves until its input ends, and answers each line of it with the processor
// time that it has used, in nanoseconds. A route and more lines of configuration
// may be given.
func child(dir, route, more string) error {
	ctx := context.Background()
	p := oneStep()
	p.route, p.more = route, more
	dm, err := openPlay(ctx, dir, p)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		_, err = dm.FirstToken(ctx, token)
	}
	if err == nil {
		err = dm.Start(ctx)
	}
	if err != nil {
		return err
	}
	dm.Serve(l, false)
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(cpuTime().Nanoseconds())
	}
	return dm.Stop(ctx)
}

// node is a daemon in a process of its own.
type node struct {
	*caller
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	addr  string
	took  time.Duration // from the start of the process until it was ready
}

func startNode(dir string) (*node, error) { return startNodeWith(dir, oneStep()) }

// startNodeWith starts one with the route and the configuration of a play.
func startNodeWith(dir string, p play) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := &node{cmd: exec.Command(self, childArg, dir, p.route, p.more)}
	n.cmd.Stderr = os.Stderr
	in, err := n.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	n.stdin = in
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	n.out = bufio.NewReader(out)
	line, err := n.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the daemon did not start: %w", err)
	}
	n.addr = strings.TrimSpace(line)
	n.caller = newCaller(n.addr)
	var ready struct{}
	if err := n.do("GET", "/readyz", "", &ready); err != nil {
		return nil, err
	}
	n.took = time.Since(begin)
	return n, nil
}

// cpu is the processor time that the process has used so far. One at a time may ask.
func (n *node) cpu() (time.Duration, error) {
	if _, err := io.WriteString(n.stdin, "cpu\n"); err != nil {
		return 0, err
	}
	line, err := n.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Duration(ns), err
}

func (n *node) stop() error {
	n.http.CloseIdleConnections()
	n.stdin.Close()
	return n.cmd.Wait()
}

// kill ends the process without a word.
func (n *node) kill() error {
	n.http.CloseIdleConnections()
	err := n.cmd.Process.Kill()
	n.stdin.Close()
	_ = n.cmd.Wait() // it says that it was killed
	return err
}

// memory is the resident memory of the process in MiB, now or at its most.
func (n *node) memory(peak bool) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		return -1 // not on this system
	}
	name := "VmRSS:"
	if peak {
		name = "VmHWM:"
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err == nil {
				return float64(kib) / 1024
			}
		}
	}
	return -1
}
