package config

import (
	"fmt"
	"net/netip"
	"net/url"
)

// AllowPrivate reads the networks of targets.allow_private.
func (c *Config) AllowPrivate() ([]netip.Prefix, *Error) {
	return networks("targets.allow_private", c.Targets.AllowPrivate)
}

// Networks reads a list of networks that check has seen.
func Networks(list []string) []netip.Prefix {
	out, _ := networks("", list)
	return out
}

func networks(path string, list []string) ([]netip.Prefix, *Error) {
	var out []netip.Prefix
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, mistake(fmt.Sprintf("%s[%d]", path, i), "%q is no network such as 127.0.0.0/8", s)
		}
		out = append(out, p)
	}
	return out, nil
}

// checkNetwork holds the rules of the ways out that the file names.
func (c *Config) checkNetwork() *Error {
	if _, err := c.AllowPrivate(); err != nil {
		return err
	}
	if _, err := networks("telemetry.allow_private", c.Telemetry.AllowPrivate); err != nil {
		return err
	}
	for _, name := range sorted(c.Tools) {
		if _, err := networks("tools."+name+".allow_private", c.Tools[name].AllowPrivate); err != nil {
			return err
		}
	}
	proxies := map[string]string{} // by host
	for _, name := range sorted(c.Routes) {
		r := c.Routes[name]
		if _, err := networks("routes."+name+".allow_private", r.AllowPrivate); err != nil {
			return err
		}
		if r.Proxy != "" {
			u, err := url.Parse(r.Proxy)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
				return mistake("routes."+name+".proxy", "want a URL such as http://proxy.internal:3128, without user and path")
			}
		}
		host := r.Provider
		if u, err := url.Parse(r.BaseURL); err == nil && r.BaseURL != "" {
			host = u.Host
		}
		if other, seen := proxies[host]; seen && other != r.Proxy {
			return mistake("routes."+name+".proxy", "another route to the same host goes another way; one host has one proxy")
		}
		proxies[host] = r.Proxy
	}
	return nil
}
