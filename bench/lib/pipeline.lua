-- Several requests in one write; how many stands behind "--" on wrk's command line.
local batch

function init(args)
   local request = wrk.format(nil, wrk.path)
   batch = string.rep(request, tonumber(args[1]))
end

function request()
   return batch
end
