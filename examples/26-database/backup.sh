# What the job runs. The dump makes the tables those of the role $OWNER, as which all users act.
set -eu -o pipefail
cd /backups

prune() {
  find . -type f -name '*.sql.gz' | sort -r | tail -n +$((KEEP + 1)) | xargs -r rm
}

find . -type f -name '*.part' -mmin +600 -delete
prune  # before the dump, too: otherwise, a full volume would stay full
file=$(date -u +%Y%m%d-%H%M%S).sql.gz
trap 'rm -f "$file.part"' EXIT
{
  echo "CREATE ROLE $OWNER; ALTER DATABASE $PGDATABASE OWNER TO $OWNER; SET ROLE $OWNER;"
  pg_dump --no-owner --no-acl
} | gzip > "$file.part"
mv "$file.part" "$file"
prune
