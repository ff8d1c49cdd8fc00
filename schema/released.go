package schema

// Reasons of writer_released that say what became of the older segments and of
// the blobs.
const (
	ReasonPacked  = "packed"  // they are in the session's archive
	ReasonRemoved = "removed" // they are gone, and the session is one that is not there
)

// Released is the data of writer_released. By and Why are a person's.
type Released struct {
	Reason string `json:"reason"`
	By     string `json:"by"`
	Why    string `json:"why"`
}

// Data is its JSON.
func (r Released) Data() []byte {
	var o Object
	o.Text("reason", r.Reason)
	if r.By != "" {
		o.Text("by", r.By)
	}
	if r.Why != "" {
		o.Text("why", r.Why)
	}
	return o.Bytes()
}

// Removes reports whether an event, as the last one of a session's newest
// segment, says that the session was removed.
func (e *Event) Removes() bool {
	var r Released
	return e.Type == TypeWriterReleased && Unmarshal(e.Data, &r) == nil && r.Reason == ReasonRemoved
}
