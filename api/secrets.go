package api

import "time"

// PutSecret is the body of PUT /v1/secrets/{name}. Its value is never given back.
type PutSecret struct {
	Value    string `json:"value,omitempty"`    // 8 bytes to 64 KiB
	Generate bool   `json:"generate,omitempty"` // draw a signing secret instead; the answer shows it this once
	// Hosts are where it may be sent: api.example.com, with a port or without, or
	// *.example.com; an empty list: nowhere, it only signs. Absent: as the version before, or nowhere.
	Hosts []string `json:"hosts,omitzero"`
	// FormerFor is how long the versions before count beside this one, as a
	// duration; 0s after a leak. Default: slots.former_for of the configuration.
	FormerFor *string `json:"former_for,omitempty"`
}

// Secret is what is shown of a slot: never its value, save one that was drawn
// just now.
type Secret struct {
	Name        string          `json:"name"`
	UserID      string          `json:"user_id,omitempty"` // absent: the daemon's own
	Version     int64           `json:"version"`
	Hosts       []string        `json:"hosts"`
	KeyID       string          `json:"key_id"` // of the master key that it is sealed under
	CreatedAt   time.Time       `json:"created_at"`
	CreatedBy   string          `json:"created_by"`
	FormerUntil *time.Time      `json:"former_until,omitempty"` // until then a version before counts too
	Former      []SecretVersion `json:"former,omitempty"`       // the versions before that count too; of a list absent
	Value       string          `json:"value,omitempty"`        // drawn by this request
}

// SecretVersion is a version before the current one.
type SecretVersion struct {
	Version   int64     `json:"version"`
	Hosts     []string  `json:"hosts"`
	KeyID     string    `json:"key_id"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	Until     time.Time `json:"until"` // when it ends to count
}

// Rekeyed is what one step of sealing secrets anew did.
type Rekeyed struct {
	KeyID    string `json:"key_id"`   // of the current master key
	Resealed int    `json:"resealed"` // versions, by this step
	Left     int64  `json:"left"`     // versions under other keys; go on until it is 0
}
