package config

// DefaultReserve is Store.Reserve where the file does not say.
const DefaultReserve = 64 << 20

const maxReserve = 1 << 40

// ReserveBytes is the reserve that counts.
func (s *Store) ReserveBytes() uint64 {
	if s.Reserve == 0 {
		return DefaultReserve
	}
	return uint64(s.Reserve)
}
