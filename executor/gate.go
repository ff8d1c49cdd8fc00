package executor

// admit says whether a call may run: the tool exists and the arguments fit.
// Phases, tiers, paths and policy have their place here.
func (s *session) admit(req *Request) (Tool, error) {
	if req.lost != nil { // it must not run with what is left of its arguments
		return Tool{}, req.lost
	}
	e, err := s.x.cfg.Tools.lookup(req.Name)
	if err != nil {
		return Tool{}, err
	}
	return e.tool, e.fits(req.Args, readSound)
}
