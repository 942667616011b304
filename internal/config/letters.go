package config

import "time"

// Retention is how long the ledger keeps what is settled. The log keeps its
// events, and dead letters stay until a person resolves or replays them.
type Retention struct {
	// Delivered is how long a delivery is listed after it was delivered. At most
	// 87600h. Default 168h.
	Delivered Duration `yaml:"delivered"`
	// Resolved is how long a delivery is listed after it was resolved. At most
	// 87600h. Default 2160h.
	Resolved Duration `yaml:"resolved"`
	// Jobs is how long a job is listed after its end, and a plan that was never
	// started. At most 87600h. Default 2160h.
	Jobs Duration `yaml:"jobs"`
}

// DefaultRetention is what holds where nothing is said.
var DefaultRetention = Retention{Delivered: Duration(7 * 24 * time.Hour), Resolved: Duration(90 * 24 * time.Hour), Jobs: Duration(90 * 24 * time.Hour)}

func (d *Delivery) checkLetters() *Error {
	const most = int64(87600 * time.Hour)
	for _, n := range []bound{
		{"replay_rate", int64(d.ReplayRate), 1000, false}, {"plan_time", int64(d.PlanTime), int64(24 * time.Hour), true},
		{"open_plans", int64(d.OpenPlans), 200, false},
		{"retention.delivered", int64(d.Retention.Delivered), most, true}, {"retention.resolved", int64(d.Retention.Resolved), most, true},
		{"retention.jobs", int64(d.Retention.Jobs), most, true},
	} {
		if err := n.check("delivery"); err != nil {
			return err
		}
	}
	return nil
}
