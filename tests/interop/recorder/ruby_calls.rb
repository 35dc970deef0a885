# Sends, by Google's own client for Ruby, what distributed-lock-google-cloud-storage 1.1.0 hands to it.
#
# Not the gem itself: the values and preconditions are those of its source (lock.rb: create_lock_object, lock_stale?,
# refresh_lock, delete_lock_object). What it shows is how the client writes and reads them, above all expires_at.
require 'google/apis/storage_v1'
require 'json'
require 'stringio'

service = Google::Apis::StorageV1::StorageService.new
service.root_url = "#{ENV.fetch('STORAGE_EMULATOR_HOST')}/"
what, bucket, path, given = ARGV

case what
when 'create'
  resource = Google::Apis::StorageV1::Object.new(
    cache_control: 'no-store',
    metadata: { expires_at: (Time.now + 300).to_f, identity: given }
  )
  service.insert_object(bucket, resource, name: path, if_generation_match: 0, upload_source: StringIO.new)
when 'read'
  expires_at = service.get_object(bucket, path).metadata['expires_at']
  puts JSON.generate(
    'identity' => service.get_object(bucket, path).metadata['identity'],
    'expires_at' => expires_at,
    'class' => expires_at.class.name,
    'to_f' => expires_at.to_f,
    'stale' => Time.now.to_f > expires_at.to_f
  )
when 'refresh'
  change = Google::Apis::StorageV1::Object.new(metadata: { 'expires_at' => (Time.now + 300).to_f })
  service.patch_object(bucket, path, change, if_metageneration_match: given.to_i)
when 'delete'
  service.delete_object(bucket, path, if_metageneration_match: given.to_i)
end
