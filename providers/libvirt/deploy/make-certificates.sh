#!/bin/sh
# make-certificates.sh DIR HOST CLIENT makes what a hypervisor and a provider need to meet over TLS, in DIR: an authority of your own
# (ca/), the files of the hypervisor (server/), which is reached under the name or address HOST, and those of the provider (client/),
# whose name is CLIENT. Called again with the same DIR it uses the authority that is there, for the next host. It needs openssl.
set -eu
umask 077

[ $# = 3 ] || { echo "usage: make-certificates.sh DIR HOST CLIENT" >&2; exit 2; }
dir=$1 host=$2 client=$3
days=3650

case $host in
*[!0-9.]*) name=DNS:$host ;;
*) name=IP:$host ;;
esac

mkdir -p "$dir/ca" "$dir/server" "$dir/client"

if [ ! -e "$dir/ca/cakey.pem" ]; then
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days $days -subj '/CN=libvirt authority' \
		-addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign,cRLSign' \
		-keyout "$dir/ca/cakey.pem" -out "$dir/ca/cacert.pem"
fi

# sign FOLDER NAME EXTENSIONS makes a key and has the authority sign its certificate.
sign() {
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$2" -keyout "$dir/$1/$1key.pem" -out "$dir/$1/request.pem"
	printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n%s\n' "$3" >"$dir/$1/extensions"
	openssl x509 -req -days $days -in "$dir/$1/request.pem" -CA "$dir/ca/cacert.pem" -CAkey "$dir/ca/cakey.pem" -CAcreateserial \
		-extfile "$dir/$1/extensions" -out "$dir/$1/$1cert.pem"
	rm "$dir/$1/request.pem" "$dir/$1/extensions"
	cp "$dir/ca/cacert.pem" "$dir/$1/"
}

sign server "$host" "subjectAltName=$name
extendedKeyUsage=serverAuth"
sign client "$client" 'extendedKeyUsage=clientAuth'
