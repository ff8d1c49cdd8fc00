package lease

import (
	"fmt"
	"os"
	"os/user"
	"strconv"

	"steno/schema"
)

// Own is UnsafeStatePath for a folder of another user than the one whose files
// this process makes: one that may write everywhere, such as root. Readers, the
// owner among them, take nothing for a part of a log that belongs to another
// user than its folder, so what it made there would lock all of them out. It is
// asked before anything is made. what is how a message calls the folder.
func Own(folder *os.Root, what string) error {
	fi, err := folder.Stat(".")
	if err != nil {
		return schema.Errorf(schema.LogReadFailed, "%s cannot be looked at: %s", what, Cause(err)).Cause(err)
	}
	_, uid := inode(fi)
	return own(uid, what)
}

// Own is [Own] for the folder of the session.
func (d *Dir) Own() error {
	_, uid := inode(d.info)
	if err := own(uid, "the folder of session "+d.name); err != nil {
		return schema.AsError(err).With("session", d.name)
	}
	return nil
}

func own(uid uint32, what string) error {
	me := fileUser()
	if uid == me {
		return nil
	}
	name := userName(uid)
	if _, err := strconv.Atoi(name); err == nil {
		name = "'#" + name + "'" // as sudo takes a number
	}
	return schema.Errorf(schema.UnsafeStatePath, "%s belongs to %s, and this process makes files of %s, which would lock its owner out", what, userName(uid), userName(me)).
		With("outcome", "not_stored").With("next", "run it as the owner: sudo -u "+name+" COMMAND; or give the whole store to one user with chown -R")
}

// userName is the name of a user, or the number of one that has none here.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil && u.Username != "" {
		return u.Username
	}
	return id
}

const ofAnother = "belongs to another user than its folder"

// unsafeSegment is the error of a segment that is foreign.
func (d *Dir) unsafeSegment(epoch uint64, why string) error {
	e := unsafePath(d.name, fmt.Sprintf("segment %06d %s", epoch, why)).With("segment", epoch)
	if why == ofAnother {
		_, uid := inode(d.info)
		e.With("next", fmt.Sprintf("if a command of another user made it, give it to the owner: chown %s sessions/%s/%s in the store; else put the owner's file back", userName(uid), d.name, segmentName(epoch)))
	}
	return e
}
