package executor

import "time"

// workersEntry is what a tools file says of workers.
type workersEntry struct {
	Accept string         `json:"accept"`
	Tools  []vouchedEntry `json:"tools"`
}

type vouchedEntry struct {
	Vouched
	Timeout span `json:"timeout"`
}

// workers are the settings, which are checked; those by default where nothing is
// said.
func (e *workersEntry) workers() (w Workers, err error) {
	if e != nil {
		w.Accept = e.Accept
		for _, v := range e.Tools {
			v.Vouched.Timeout = time.Duration(v.Timeout)
			w.Tools = append(w.Tools, v.Vouched)
		}
	}
	return w, w.check()
}
