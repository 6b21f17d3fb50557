package sim

// bug says whether a fault of the program is planted.
func (w *world) bug(name string) bool { return w.options.Bug == name }
