package llm

// Price is what a route's model costs, in US dollars per million tokens.
type Price struct {
	Input, Output         float64
	CacheRead, CacheWrite float64 // of input that was read from, or written to, the vendor's cache
}

// Cost is what a usage costs, in US dollars. Input includes what was cached,
// which has prices of its own; Output includes reasoning. Counts that cannot be
// (more cached than there was input) are taken as cached.
func (p Price) Cost(u *Usage) float64 {
	plain := max(u.Input-u.CacheRead-u.CacheWrite, 0)
	return (float64(plain)*p.Input + float64(u.CacheRead)*p.CacheRead + float64(u.CacheWrite)*p.CacheWrite + float64(u.Output)*p.Output) / 1e6
}
