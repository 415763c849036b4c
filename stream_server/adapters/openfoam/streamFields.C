// The OpenFOAM function object `streamFields`: it sends the volume fields of a case that `fields` names to a study.
// At each of its writes it sends a time step: the first one has the first label of study.time_steps, and so on. The
// cells of a decomposed case are gathered on its master, in the order of the case before it was decomposed.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "addToRunTimeSelectionTable.H"
#include "fvMeshFunctionObject.H"
#include "labelIOList.H"
#include "volFields.H"

#include <stream_client.hpp>

namespace Foam {
namespace functionObjects {

class streamFields : public fvMeshFunctionObject {
public:
    TypeName("streamFields");

    streamFields(const word& name, const Time& runTime, const dictionary& dict)
        : fvMeshFunctionObject(name, runTime, dict) {
        ++numMade_;
        read(dict);
    }

    virtual ~streamFields() { --numMade_; }

    virtual bool read(const dictionary& dict) {
        fvMeshFunctionObject::read(dict);
        dict.lookup("fields") >> fields_;
        if (fields_.empty()) {
            FatalIOErrorInFunction(dict) << "fields must name what is sent, such as (U p), but is ()"
                                         << exit(FatalIOError);
        }
        return true;
    }

    virtual bool execute() { return true; }

    virtual bool write() {
        if (isOver_) return true;
        if (!numSent_) begin();
        for (const word& field : fields_) {
            const bool found = put<scalar>(field) || put<vector>(field) || put<sphericalTensor>(field) ||
                               put<symmTensor>(field) || put<tensor>(field);
            if (!found) refuse(field);
        }
        bool isWanted = true;
        call([&] { isWanted = send(); });
        ++numSent_;
        Pstream::scatter(isWanted);
        if (!isWanted) {
            Info<< name() << ": the study wants no more time steps of this case, which ends here" << endl;
            end();
            time_.stopAt(Time::saNoWriteNow);
        }
        return true;
    }

    virtual bool end() {
        if (!isOver_ && !numSent_) {
            fail("the case ends, and nothing was sent: writeControl and writeInterval must come to a write before");
        }
        isOver_ = true;
        call([&] { simulation_->finish(); });
        return true;
    }

private:
    // How many there are in this process: a case is one simulation.
    static label numMade_;

    wordList fields_;

    // Of the master alone, from the first write on.
    std::unique_ptr<stream::Simulation> simulation_;

    // On the master of a decomposed case, for each rank: the places of its cells in the whole case, if they are known.
    List<labelList> places_;

    label numSent_ = 0;
    bool isOver_ = false;

    // The master ends the case on all ranks, which wait for it in their next communication; the study then starts a new
    // attempt. The text is the last line of the log, which the study shows as the reason.
    void fail(const std::string& text) {
        if (!Pstream::master()) return;
        simulation_.reset();
        std::cerr << "\n" << type() << ' ' << name() << ": " << text << std::endl;
        Pstream::exit(1);
    }

    // On the master alone.
    template <class Call>
    void call(Call&& call) {
        if (!simulation_) return;
        try {
            call();
        } catch (const stream::Error& error) {
            fail(error.what());
        }
    }

    void begin() {
        if (numMade_ > 1) {
            fail("controlDict has " + std::to_string(numMade_) + " function objects of this type: a case is one "
                 "simulation, so name all fields in one of them");
        }
        if (Pstream::parRun()) gatherPlaces();
        if (!Pstream::master()) return;
        try {
            simulation_.reset(new stream::Simulation());
        } catch (const stream::Error& error) {
            fail(error.what());
        }
    }

    void gatherPlaces() {
        const labelIOList places(IOobject("cellProcAddressing", mesh_.facesInstance(), polyMesh::meshSubDir, mesh_,
                                          IOobject::READ_IF_PRESENT, IOobject::NO_WRITE, false));
        if (!returnReduce(places.size() == mesh_.nCells(), andOp<bool>())) {
            Info<< name() << ": no cellProcAddressing fits the mesh, so the cells are sent rank by rank" << endl;
            return;
        }
        places_.setSize(Pstream::nProcs());
        places_[Pstream::myProcNo()] = places;
        Pstream::gatherList(places_);
    }

    // Put a field of this type into the next time step; false: the case has none of this name.
    template <class Type>
    bool put(const word& field) {
        typedef GeometricField<Type, fvPatchField, volMesh> volField;
        if (!mesh_.foundObject<volField>(field)) return false;
        List<Field<Type>> parts(Pstream::nProcs());
        parts[Pstream::myProcNo()] = mesh_.lookupObject<volField>(field).primitiveField();
        Pstream::gatherList(parts);
        call([&] { putCells(field, parts); });
        return true;
    }

    template <class Type>
    void putCells(const word& field, const List<Field<Type>>& parts) {
        const direction numComponents = pTraits<Type>::nComponents;
        std::int64_t numCells = 0;
        for (const Field<Type>& part : parts) numCells += part.size();
        std::vector<scalar> values(std::size_t(numCells) * numComponents);
        std::size_t next = 0;
        forAll(parts, rank) {
            if (places_.size() && places_[rank].size() != parts[rank].size()) {
                fail("the mesh of rank " + std::to_string(rank) + " has " + std::to_string(parts[rank].size()) +
                     " cells, and had " + std::to_string(places_[rank].size()) + " at the first write: a mesh that "
                     "changes can be sent from a case that is not decomposed");
            }
            forAll(parts[rank], cell) {
                const std::size_t place = places_.size() ? places_[rank][cell] : next++;
                for (direction d = 0; d < numComponents; ++d) {
                    values[numComponents * place + d] = component(parts[rank][cell], d);
                }
            }
        }
        std::vector<std::int64_t> count{numCells};
        if (numComponents > 1) count.push_back(numComponents);
        // A block of cells may be a grid in study.json, such as [20, 20, 3].
        std::int64_t shape[STREAM_MAX_DIMENSIONS];
        const int numDimensions = std::max(0, stream_field_shape(simulation_->handle(), field.c_str(), shape));
        const stream::Extents whole(std::vector<std::int64_t>(shape, shape + numDimensions));
        const bool isWhole = whole.is_given() && whole.product() == std::int64_t(values.size()) &&
                             (numComponents == 1 || shape[numDimensions - 1] == numComponents);
        simulation_->put(field, values.data(), isWhole ? whole : stream::Extents(count));
    }

    // False: that was the last time step of the study, or it wants no more.
    bool send() {
        const stream::TimeSteps steps = simulation_->time_steps();
        return simulation_->send(steps.first + steps.every * numSent_) && (!steps.num || numSent_ + 1 < *steps.num);
    }

    void refuse(const word& field) {
        std::string text = "fields must be volume fields of the case, which at time " + time_.timeName() + " are ";
        const wordList known[] = {mesh_.names<volScalarField>(), mesh_.names<volVectorField>(),
                                  mesh_.names<volSphericalTensorField>(), mesh_.names<volSymmTensorField>(),
                                  mesh_.names<volTensorField>()};
        for (const wordList& names : known) {
            for (const word& each : names) text += each + " ";
        }
        fail(text + "- but " + field + " is none of them");
    }
};

defineTypeNameAndDebug(streamFields, 0);
addToRunTimeSelectionTable(functionObject, streamFields, dictionary);
label streamFields::numMade_ = 0;

}  // namespace functionObjects
}  // namespace Foam
