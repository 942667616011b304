package netguard

import "testing"

func TestHeaders(t *testing.T) {
	for name, ok := range map[string]bool{"X-A": true, "a!#$%&'*+.^_`|~9": true, "": false, "a b": false, "a:": false, "ä": false, "a\n": false, "a\x7f": false} {
		if ValidHeaderName(name) != ok {
			t.Errorf("name %q: want %v", name, ok)
		}
	}
	for value, ok := range map[string]bool{"": true, "a b\tc": true, " a": false, "a ": false, "a\r\nb": false, "\x00": false, "ü": false, "a\x7f": false} {
		if ValidHeaderValue(value) != ok {
			t.Errorf("value %q: want %v", value, ok)
		}
	}
	for name, ok := range map[string]bool{"HOST": true, "Transfer-Encoding": true, "content-length": true, "Accept": false, "": false} {
		if ConnectionHeader(name) != ok {
			t.Errorf("%q: want %v", name, ok)
		}
	}
}
