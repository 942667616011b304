package connectors

// SenderPatience is told to tests, which wait for longer.
const SenderPatience = senderPatience
