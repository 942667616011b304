//go:build unix && !linux

package plugin

// waitable cannot be told here without taking the child's end away: what a plugin
// leaves behind it is ended when it runs into its time only.
func waitable(int) bool { return false }
