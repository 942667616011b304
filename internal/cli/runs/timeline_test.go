package runs

import (
	"testing"
)

func TestLocale(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false}, {map[string]string{"LANG": "C"}, false}, {map[string]string{"LANG": "de_DE.UTF-8"}, true}, {map[string]string{"LANG": "C.utf8"}, true},
		{map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, false}, {map[string]string{"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, true},
	} {
		if got := utf8Locale(func(n string) string { return c.env[n] }); got != c.want {
			t.Errorf("%v: %v", c.env, got)
		}
	}
}
