"""A loader or a queue, for whoever must look after it: metrics, health, one page. Needs no Spark.

facts     what a loader says of itself, as a value; the recorder that it tells
status    everything that is known at one moment, and what it amounts to: one state, one verdict
watch     looks at the queue now and then, keeps the last hour
http      a small web server that hostile clients do not disturb
server    which path gives which view of the one status
"""
