package host

import "golang.org/x/sys/unix"

// peerUID is the user behind a connected Unix socket, as the kernel saw it.
func peerUID(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}
