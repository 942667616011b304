package runs

// LookAgain is told to tests, which hold how long a wait took against it.
const LookAgain = lookAgain
