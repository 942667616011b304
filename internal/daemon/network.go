package daemon

import (
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/netguard"
	"github.com/holdfast-dev/holdfast/internal/provider/wire"
)

// The ways out. Each use has a guard of its own, so that what is opened for one
// is not open for another, and a refusal names the setting that is meant.

// targetGuard is the way to addresses that callers name.
func targetGuard(cfg *config.Config, opt *Options) (*netguard.Guard, error) {
	return netguard.New(netguard.Config{AllowPrivate: config.Networks(cfg.Targets.AllowPrivate), Setting: "targets.allow_private", Dial: opt.Dial, Resolver: opt.Resolver,
		DialTimeout: cfg.Delivery.ConnectTimeout.Or(0), TLSTimeout: cfg.Delivery.ConnectTimeout.Or(0)})
}

// toolGuard is the way of one declared tool.
func toolGuard(cfg *config.Config, name string, t *config.Tool, opt *Options) (*netguard.Guard, error) {
	return netguard.New(netguard.Config{
		AllowPrivate: append(config.Networks(t.AllowPrivate), config.Networks(cfg.Targets.AllowPrivate)...), Setting: "tools." + name + ".allow_private (or targets.allow_private)", Dial: opt.Dial, Resolver: opt.Resolver,
	})
}

// providerGuard is the way to vendors. The operator names the host and port of
// a base_url, and of a proxy; a vendor's own address is a public one.
func providerGuard(cfg *config.Config, opt *Options) (*netguard.Guard, error) {
	c := netguard.Config{Setting: "routes.*.allow_private", DialTimeout: wire.DefaultConnect, Resolver: opt.Resolver}
	for _, name := range slices.Sorted(maps.Keys(cfg.Routes)) {
		r := cfg.Routes[name]
		allow, setting := config.Networks(r.AllowPrivate), "routes."+name+".allow_private"
		if r.BaseURL != "" || allow != nil {
			if base := vendorBase(&r); base != "" {
				c.Places = append(c.Places, netguard.Place{HostPort: hostOf(base), Allow: allow, Setting: setting})
			}
		}
		if r.Proxy != "" {
			c.Places = append(c.Places, netguard.Place{HostPort: hostOf(r.Proxy), Allow: allow, Setting: setting})
		}
	}
	return netguard.New(c)
}

// proxyOf says by which proxy a request to a vendor goes; nil: none has one.
func proxyOf(cfg *config.Config) func(*http.Request) (*url.URL, error) {
	by := map[string]*url.URL{}
	for _, r := range cfg.Routes {
		if u, err := url.Parse(r.Proxy); err == nil && r.Proxy != "" {
			by[hostOf(vendorBase(&r))] = u
		}
	}
	if len(by) == 0 {
		return nil
	}
	return func(r *http.Request) (*url.URL, error) { return by[hostOf(r.URL.String())], nil }
}

// telemetryGuard is the way to the collector, which the operator names.
func telemetryGuard(cfg *config.Config, opt *Options) (*netguard.Guard, error) {
	t := cfg.Telemetry
	return netguard.New(netguard.Config{
		Setting: "telemetry.allow_private", Dial: opt.Dial, Resolver: opt.Resolver,
		Places: []netguard.Place{{HostPort: hostOf(t.OTLPEndpoint), Allow: config.Networks(t.AllowPrivate), Setting: "telemetry.allow_private"}},
	})
}

// DoctorGuard is the way of a doctor who asks the vendors of a configuration.
func DoctorGuard(cfg *config.Config) (http.RoundTripper, error) {
	guard, err := providerGuard(cfg, &Options{})
	if err != nil {
		return nil, err
	}
	return wire.NewTransport(guard, proxyOf(cfg)), nil
}
