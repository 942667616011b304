package natsout

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
)

// A server may name others of its cluster. Nobody but those of the configuration is
// connected to: the credentials are for them, and what a server names may be inside.
func TestServersThatOthersName(t *testing.T) {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	trap, first := listen(), listen()
	caught := make(chan string, 8)
	info := func(c net.Conn) *bufio.Reader {
		fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"version\":\"2.10.0\",\"proto\":1,\"auth_required\":true,\"max_payload\":1048576,\"connect_urls\":[%q]}\r\n", trap.Addr())
		return bufio.NewReader(c)
	}
	go func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			line, _ := info(c).ReadString('\n')
			caught <- line
			c.Close()
		}
	}()
	go func() {
		for {
			c, err := first.Accept()
			if err != nil {
				return
			}
			r := info(c)
			for line := ""; !strings.HasPrefix(line, "PING"); {
				if line, err = r.ReadString('\n'); err != nil {
					break
				}
			}
			fmt.Fprint(c, "-ERR 'Authorization Violation'\r\n")
			c.Close()
		}
	}()
	s := newSender(t, "nats://ann:the-password-of-the-bus@"+first.Addr().String())
	for range 3 {
		if r := s.Send(t.Context(), "core", Message{ID: "dlv_1", Subject: "a.b", Body: []byte("{}")}); r.Delivered {
			t.Fatalf("%+v", r)
		}
	}
	trap.Close()
	select {
	case line := <-caught:
		t.Errorf("another server than the configured one was sent %q", line)
	default:
	}
}
