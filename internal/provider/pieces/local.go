package pieces

import (
	"net/http"
	"net/url"

	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// Local gives a client with the transport of vendors, kept connections and all,
// whose guard knows the server of a test at base as a place the operator named.
// It panics when base is no URL with a host and port.
func Local(base string) *http.Client {
	u, err := url.Parse(base)
	if err != nil {
		panic(err)
	}
	guard, err := netguard.New(netguard.Config{Places: []netguard.Place{{HostPort: u.Host}}})
	if err != nil {
		panic(err)
	}
	return &http.Client{Transport: wire.NewTransport(guard, nil)}
}
