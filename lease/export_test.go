package lease

// SetAside sets a damaged blob aside, with the exchange that it uses.
var SetAside = setAside
