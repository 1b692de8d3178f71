# How a host of hosts.py comes up: the first process in its namespaces makes local what a real host has for
# itself, and becomes its sshd. Arguments: name, folder of all hosts, size of /dev/shm, path of sshd.
set -eu
[ $$ = 1 ] || { echo "boot.sh: to be run as the first process of a host, not on the machine" >&2; exit 2; }
name=$1 folder=$2 shm=$3 sshd=$4

echo "$name" >/proc/sys/kernel/hostname
mount -t tmpfs -o "size=$shm,mode=1777" tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs "$folder/tmp"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/host/etc /run/host/work /run/host/sys

# A sysfs mounted here shows this host's network interfaces; control groups stay the machine's.
mount -t sysfs sysfs /run/host/sys
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup /run/host/sys/fs/cgroup; fi
mount --move /run/host/sys /sys

cat /proc/sys/kernel/random/uuid >/run/host/boot_id
mount --bind /run/host/boot_id /proc/sys/kernel/random/boot_id

mount -t overlay -o lowerdir=/etc,upperdir=/run/host/etc,workdir=/run/host/work overlay /etc
mountpoint -q /etc  # what follows must not reach the machine's own
echo "$name" >/etc/hostname
cp "$folder/hosts" /etc/hosts

# Root can log in with the key, whatever its password says, and its own settings on this machine do not count.
sed -i 's/^root:.*/root:*:20000:0:99999:7:::/' /etc/shadow
sed -i 's,^\(root:.*:\).*,\1/bin/sh,' /etc/passwd
if [ -d ~root/.ssh ]; then mount -t tmpfs -o mode=700 tmpfs ~root/.ssh; fi

# The default key exchange, safe from quantum computers, takes 0.1 s of processor time a connection.
cat >/etc/ssh/ssh_config <<END
IdentityFile $folder/key
IdentitiesOnly yes
IdentityAgent none
BatchMode yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
KexAlgorithms curve25519-sha256
LogLevel ERROR
ConnectTimeout 5
ServerAliveInterval 2
ServerAliveCountMax 3
END

cat >/run/host/sshd_config <<END
ListenAddress 0.0.0.0
HostKey $folder/hostkey
AuthorizedKeysFile $folder/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
PidFile none
LogLevel ERROR
MaxStartups 100
SetEnv TMPDIR=$folder/tmp
END

exec "$sshd" -D -e -f /run/host/sshd_config
