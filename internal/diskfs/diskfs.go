// Package diskfs says on what kind of file system a folder lies, and refuses
// those of other machines. SQLite's write-ahead log rests on memory that is
// shared between connections by mapping a file, on locks that hold, and on
// syncs that reach the disk. Network and cluster file systems promise none of
// them in full; a log on one works for a while and is then damaged.
package diskfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// NetworkError says that a folder lies on a file system of other machines.
type NetworkError struct {
	Dir  string
	Kind string // such as nfs
}

func (e *NetworkError) Error() string {
	return fmt.Sprintf("the data directory %s lies on a network file system (%s): the log is an SQLite database, which needs shared memory, locks "+
		"and syncs that such a file system does not give for certain, and would be damaged; "+
		"put the data directory on a local disk (ext4, xfs, btrfs, zfs, apfs)", e.Dir, e.Kind)
}

// Refuse gives a *NetworkError when a folder lies, or would be made, on a
// network file system. What cannot be told is let through.
func Refuse(dir string) error {
	kind, network, err := Check(dir)
	if err != nil || !network {
		return nil
	}
	return &NetworkError{Dir: dir, Kind: kind}
}

// Check gives the kind of file system on which a folder lies, or, where it
// does not exist yet, the nearest folder above it that does; links are
// followed. network: it is one of other machines. Where the system does not
// tell, kind is empty and network false. It asks again at each call and keeps
// nothing.
func Check(dir string) (kind string, network bool, err error) {
	return check(dir, ask, mounts)
}

// answer is what the system says of the file system that holds a path.
type answer struct {
	magic  uint32 // Linux: the number of its kind
	device string // Linux: major:minor, as the list of mounts has it
	name   string // elsewhere: the name of its kind
	remote bool   // elsewhere: the system says that it is not local
}

// check is Check with the system in hand.
func check(dir string, ask func(string) (answer, error), mounts func() ([]byte, error)) (kind string, network bool, err error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return "", false, fmt.Errorf("file system of %s: %w", dir, err)
	}
	for {
		a, err := ask(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			at = filepath.Dir(at)
			continue
		}
		if err != nil {
			return "", false, fmt.Errorf("file system of %s: %w", dir, err)
		}
		kind, network = a.kind(mounts)
		return kind, network, nil
	}
}

// kind tells what an answer means.
func (a answer) kind(mounts func() ([]byte, error)) (string, bool) {
	switch {
	case a.magic == 0:
		return a.name, a.remote || networkNames[a.name]
	case a.magic == fuseMagic:
		list, err := mounts()
		if err != nil {
			return "fuse", false
		}
		return fuse(mountType(list, a.device))
	}
	if known, ok := magics[a.magic]; ok {
		return known.name, known.network
	}
	return fmt.Sprintf("0x%x", a.magic), false
}

// fuseMagic is the number of all kinds that programs provide; only the list
// of mounts tells them apart.
const fuseMagic = 0x65735546

// magics are the kinds of Linux, by number.
var magics = map[uint32]struct {
	name    string
	network bool
}{
	0x6969:     {"nfs", true},
	0x517b:     {"smb", true},
	0xff534d42: {"cifs", true},
	0xfe534d42: {"smb3", true},
	0x564c:     {"ncp", true},
	0x5346414f: {"afs", true},
	0x6b414653: {"afs", true},
	0x73757245: {"coda", true},
	0x01021997: {"9p", true},
	0x00c36400: {"ceph", true},
	0x0bd00bd0: {"lustre", true},
	0x01161970: {"gfs2", true},
	0x7461636f: {"ocfs2", true},
	0x47504653: {"gpfs", true},
	0xaad7aaea: {"panfs", true},
	0x19830326: {"beegfs", true},
	0x20030528: {"orangefs", true},
	// Folders of the host of a virtual machine.
	0x786f4256: {"vboxsf", true},
	0xbacbacbc: {"vmhgfs", true},
	0x7c7c6673: {"prl_fs", true},

	0xef53:     {"ext", false},
	0x58465342: {"xfs", false},
	0x9123683e: {"btrfs", false},
	0x2fc12fc1: {"zfs", false},
	0xf2f52010: {"f2fs", false},
	0xca451a4e: {"bcachefs", false},
	0x3153464a: {"jfs", false},
	0x52654973: {"reiserfs", false},
	0x01021994: {"tmpfs", false},
	0x858458f6: {"ramfs", false},
	0x794c7630: {"overlay", false},
	0xf15f:     {"ecryptfs", false},
	0x7366746e: {"ntfs", false},
	0x2011bab0: {"exfat", false},
	0x4d44:     {"vfat", false},
}

// networkNames are kinds by name: of FUSE, after `fuse.`, and of systems that
// have names and no numbers. Programs that keep files on the same machine
// (ntfs-3g, gocryptfs, mergerfs, bindfs) are not among them, nor is virtiofs,
// which one guest has for itself.
var networkNames = map[string]bool{
	"nfs": true, "smbfs": true, "cifs": true, "afpfs": true, "webdav": true, "ftp": true, "afs": true, "9p": true,
	"sshfs": true, "s3fs": true, "s3ql": true, "goofys": true, "geesefs": true, "mountpoint-s3": true, "gcsfuse": true, "blobfuse": true, "blobfuse2": true,
	"rclone": true, "davfs": true, "davfs2": true, "curlftpfs": true, "smbnetfs": true, "gvfsd-fuse": true,
	"glusterfs": true, "ceph": true, "ceph-fuse": true, "juicefs": true, "mfs": true, "moosefs": true, "lizardfs": true, "seaweedfs": true,
	"hadoop-fuse-dfs": true, "fuse_dfs": true, "cvmfs2": true, "vmhgfs-fuse": true, "osxfs": true, "grpcfuse": true,
}

// fuse tells a kind of FUSE by its name in the list of mounts.
func fuse(name string) (string, bool) {
	if name == "" {
		return "fuse", false
	}
	return name, networkNames[strings.ToLower(strings.TrimPrefix(name, "fuse."))]
}

// mountType finds the kind of a device in a list of mounts, in the form of
// /proc/self/mountinfo; empty: it is not there.
func mountType(list []byte, device string) string {
	for line := range bytes.SplitSeq(list, []byte("\n")) {
		fields := strings.Fields(string(line)) // blanks in names are coded
		if len(fields) < 3 || fields[2] != device {
			continue
		}
		for i, f := range fields {
			if f == "-" && i >= 6 && i+1 < len(fields) {
				return fields[i+1]
			}
		}
	}
	return ""
}

// maxMounts bounds what is read of the list of mounts, in bytes.
const maxMounts = 4 << 20

// pathError makes of the error of a system call one with its path.
func pathError(path string, err error) error {
	return &os.PathError{Op: "statfs", Path: path, Err: err}
}
