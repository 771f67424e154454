package owner

// Steering is what an adapter offers for a message that arrives while its turn runs. Both of our adapters read
// their prompt once, so neither takes a message in the middle of a turn: it waits for the turn's boundary, and the
// next turn's start is what acknowledges it.
type Steering struct {
	MidTurn bool // a message can be delivered into the running turn
	Emulate bool // a sender may ask for cancel and continue instead
}

// SteeringOf answers for an adapter; one that is not known offers nothing. It is asked when a device's command is
// decided, and never chooses an emulation by itself.
func SteeringOf(adapter string) Steering {
	return Steering{Emulate: adapter == PromptCommand}
}

// steerAcknowledged is the word for how these adapters confirm that they read a correction.
const steerAcknowledged = "next_turn_start"
