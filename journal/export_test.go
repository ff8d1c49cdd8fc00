package journal

// MakeDir makes a store's folder, with the sync that it uses.
var MakeDir = makeDir
