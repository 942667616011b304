package contract

const (
	// DefaultRepairAttempts is how often an answer may be corrected when the
	// contract does not say.
	DefaultRepairAttempts = 3
	// MaxRepairAttempts is the ceiling, whatever a contract asks for.
	MaxRepairAttempts = 5
)

// Output is an output contract: what a run's answer must conform to, and how
// often the model may be asked to correct it.
type Output struct {
	Schema *Schema
	// MaxRepairAttempts as asked for; nil when the contract does not say.
	MaxRepairAttempts *int
}

// ParseOutput reads an output contract from its parts. It returns either a
// contract or all the issues.
func ParseOutput(jsonSchema []byte, maxRepairAttempts *int) (Output, []Issue) {
	schema, issues := ParseSchema(jsonSchema)
	if maxRepairAttempts != nil && *maxRepairAttempts < 0 {
		issues = append(issues, Issue{"$.max_repair_attempts", "must be 0 or more"})
	}
	if len(issues) > 0 {
		return Output{}, issues
	}
	return Output{Schema: schema, MaxRepairAttempts: copyInt(maxRepairAttempts)}, nil
}

// Budget returns how many repair turns a run has: what was asked for, 3 when
// nothing was, never more than 5. 0 is none, which is not the same as nothing
// asked for. (I-09)
func (o Output) Budget() int {
	if o.MaxRepairAttempts == nil {
		return DefaultRepairAttempts
	}
	return min(max(*o.MaxRepairAttempts, 0), MaxRepairAttempts)
}

func copyInt(p *int) *int {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
