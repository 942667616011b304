package lane

// CountFails has the failures of so many sessions counted, until the test has ended.
func CountFails(t interface{ Cleanup(func()) }, most int) {
	before := mostFails
	mostFails = most
	t.Cleanup(func() { mostFails = before })
}
