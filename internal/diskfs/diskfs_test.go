package diskfs

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const mountList = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/a\040b rw - fuse.sshfs ann@host:/ rw
31 22 0:41 / /mnt/x rw,nosuid shared:7 master:2 - fuse.gocryptfs /crypt rw
32 22 0:42 / /mnt/y rw - virtiofs share rw
33 22 0:43 / /mnt/z rw - fuseblk /dev/sdb1 rw
34 22 0:44 / /- rw shared:1 - fuse.rclone remote: rw
35 22 0:45
36 22 0:46 / /x rw -
`

func TestKinds(t *testing.T) {
	list := func() ([]byte, error) { return []byte(mountList), nil }
	for _, test := range []struct {
		a       answer
		kind    string
		network bool
	}{
		{answer{magic: 0x6969}, "nfs", true},
		{answer{magic: 0x517b}, "smb", true},
		{answer{magic: 0xff534d42}, "cifs", true},
		{answer{magic: 0xfe534d42}, "smb3", true},
		{answer{magic: 0x01021997}, "9p", true},
		{answer{magic: 0x00c36400}, "ceph", true},
		{answer{magic: 0x0bd00bd0}, "lustre", true},
		{answer{magic: 0x01161970}, "gfs2", true},
		{answer{magic: 0x7461636f}, "ocfs2", true},
		{answer{magic: 0x5346414f}, "afs", true},
		{answer{magic: 0x6b414653}, "afs", true},
		{answer{magic: 0x564c}, "ncp", true},
		{answer{magic: 0x73757245}, "coda", true},
		{answer{magic: 0xef53}, "ext", false},
		{answer{magic: 0x58465342}, "xfs", false},
		{answer{magic: 0x9123683e}, "btrfs", false},
		{answer{magic: 0x2fc12fc1}, "zfs", false},
		{answer{magic: 0x01021994}, "tmpfs", false},
		{answer{magic: 0x794c7630}, "overlay", false},
		{answer{magic: 0x12345678}, "0x12345678", false},
		{answer{magic: fuseMagic, device: "0:40"}, "fuse.sshfs", true},
		{answer{magic: fuseMagic, device: "0:41"}, "fuse.gocryptfs", false},
		{answer{magic: fuseMagic, device: "0:42"}, "virtiofs", false},
		{answer{magic: fuseMagic, device: "0:43"}, "fuseblk", false},
		{answer{magic: fuseMagic, device: "0:44"}, "fuse.rclone", true},
		{answer{magic: fuseMagic, device: "0:45"}, "fuse", false},
		{answer{magic: fuseMagic, device: "0:46"}, "fuse", false},
		{answer{magic: fuseMagic, device: "0:4"}, "fuse", false},
		{answer{name: "apfs"}, "apfs", false},
		{answer{name: "smbfs"}, "smbfs", true},
		{answer{name: "acfs", remote: true}, "acfs", true},
		{answer{}, "", false},
	} {
		kind, network, err := check("/data", func(string) (answer, error) { return test.a, nil }, list)
		if kind != test.kind || network != test.network || err != nil {
			t.Errorf("%+v: %q, %v, %v", test.a, kind, network, err)
		}
	}
	kind, network, err := check("/data", func(string) (answer, error) { return answer{magic: fuseMagic}, nil },
		func() ([]byte, error) { return nil, errors.New("no /proc") })
	if kind != "fuse" || network || err != nil {
		t.Errorf("without a list of mounts: %q, %v, %v", kind, network, err)
	}
}

// A folder that does not exist yet lies where it will be made.
func TestNearest(t *testing.T) {
	var asked []string
	there := func(path string) (answer, error) {
		asked = append(asked, path)
		if path != "/mnt" {
			return answer{}, pathError(path, fs.ErrNotExist)
		}
		return answer{magic: 0x6969}, nil
	}
	kind, network, err := check("/mnt/new/data", there, nil)
	if kind != "nfs" || !network || err != nil || strings.Join(asked, " ") != "/mnt/new/data /mnt/new /mnt" {
		t.Errorf("%q, %v, %v, asked %q", kind, network, err, asked)
	}
	for _, failure := range []error{fs.ErrPermission, fs.ErrNotExist} {
		_, _, err = check("/mnt", func(path string) (answer, error) { return answer{}, pathError(path, failure) }, nil)
		if !errors.Is(err, failure) || !strings.Contains(err.Error(), "/mnt") {
			t.Errorf("%v: %v", failure, err)
		}
	}
}

// The system is asked: a folder of the tests lies on a disk of a known kind.
func TestCheck(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "not", "yet")} {
		kind, network, err := Check(dir)
		told := runtime.GOOS == "linux" || runtime.GOOS == "darwin" || runtime.GOOS == "freebsd"
		if network || err != nil || told != (kind != "") {
			t.Errorf("%s: %q, %v, %v", dir, kind, network, err)
		}
		if err := Refuse(dir); err != nil {
			t.Error(err)
		}
	}
	text := (&NetworkError{Dir: "/mnt/data", Kind: "nfs"}).Error()
	for _, want := range []string{"/mnt/data", "(nfs)", "shared memory", "local disk"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}

// Whatever the list of mounts holds, it is only read.
func FuzzMountType(f *testing.F) {
	f.Add([]byte(mountList), "0:40")
	f.Add([]byte("- - -"), "-")
	f.Fuzz(func(t *testing.T, list []byte, device string) {
		if kind := mountType(list, device); kind != "" && !strings.Contains(string(list), kind) {
			t.Errorf("%q", kind)
		}
	})
}
