package daemon

import (
	"encoding/hex"
	"fmt"
	"io"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/internal/bus"
	"github.com/holdfast-dev/holdfast/internal/event"
	"github.com/holdfast-dev/holdfast/internal/metrics"
)

// openBus makes the way to other nodes, where one is configured. Nothing waits
// for it: a bus that is down is connected to when it comes.
func (d *Daemon) openBus(opt Options) error {
	if opt.Far != nil {
		d.far = true
		d.hub.Connect(opt.Far(&d.hub))
		return nil
	}
	if !d.cfg.BusURL.Set() {
		return nil
	}
	var id [8]byte
	if _, err := io.ReadFull(opt.Random, id[:]); err != nil {
		return fmt.Errorf("draw name on the bus: %w", err)
	}
	var err error
	d.bus, err = bus.New(bus.Config{URL: d.cfg.Bus, Hub: &d.hub, Node: hex.EncodeToString(id[:]), Dial: opt.Dial, Logger: d.log})
	return err
}

func (d *Daemon) startBus() {
	if d.bus != nil {
		d.bus.Start()
	}
}

func (d *Daemon) stopBus() {
	if d.bus != nil {
		d.bus.Close()
	}
}

// whereLive says where live deltas of a stream come from.
func (d *Daemon) whereLive(s event.Stream) string {
	return whereLive(d.shared, d.far || d.bus != nil && d.bus.Connected(), func() bool { return d.worksOn(s) })
}

// worksOn says whether this node works on a session now.
func (d *Daemon) worksOn(s event.Stream) bool {
	id, ok := s.Session()
	return ok && d.lane.Works(id)
}

// whereLive decides: shared says that other nodes use the store too, connected
// that the bus can be used, and holds that this node works on the session.
func whereLive(shared, connected bool, holds func() bool) string {
	switch {
	case !shared:
		return api.LiveLocal
	case connected:
		return api.LiveBus
	case holds():
		return api.LiveLocal
	}
	return api.LiveNone
}

// busStats are the figures of the bus, zeros where there is none.
func (d *Daemon) busStats() metrics.Bus {
	if d.bus == nil {
		return metrics.Bus{}
	}
	s := d.bus.Stats()
	return metrics.Bus{
		Configured: true, Connected: s.Connected, Peers: s.Peers, Subjects: s.Subjects, Connects: s.Connects, Messages: s.Messages,
		Sent: s.Sent, Received: s.Received, Dropped: s.Dropped, Missed: s.Missed,
	}
}
