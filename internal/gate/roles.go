package gate

import "slices"

// Role is what a caller may do; each includes the one before it.
type Role int

// The roles.
const (
	Public   Role = iota // no token wanted
	Reader               // reads
	Operator             // creates, submits, changes, stops and erases
	Admin                // tokens too
)

var roleNames = [...]string{"public", "reader", "operator", "admin"}

func (r Role) String() string { return roleNames[r] }

// RoleOf gives the role of a token by its name.
func RoleOf(name string) (Role, bool) {
	i := slices.Index(roleNames[:], name)
	return Role(i), i > int(Public)
}

// Roles are the names of those that a token may have, the least first.
func Roles() []string { return slices.Clone(roleNames[Reader:]) }
